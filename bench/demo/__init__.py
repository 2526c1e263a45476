"""The demo: an all-to-all and a bulk write share one slow device, without MFS and with it."""

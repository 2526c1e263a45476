"""SGLang: hooks report which request each page of its KV belongs to."""

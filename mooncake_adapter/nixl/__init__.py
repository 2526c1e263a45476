"""NIXL: transfers of its agent are permitted before they are posted, and travel in the lane of their class."""

"""The linear ODM, over dense or sparse rows."""

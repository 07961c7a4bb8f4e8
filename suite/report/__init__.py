"""A summary as text, tables, pictures and bundles."""

"""script/docs: what the generated tables are made of."""

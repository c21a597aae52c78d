"""script/catalog-check: the catalog compared with what its sources say today."""

"""What only a clone needs: not part of the collection, which imports none of it."""

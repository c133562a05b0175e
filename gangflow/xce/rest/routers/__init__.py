"""One file for each idea of the contract."""

"""The REST contract: what the embedded controller serves, and what a remote XCE is expected to.

`schema` says the shapes, `client` and `aclient` call them (no FastAPI needed), `server` serves them.
"""

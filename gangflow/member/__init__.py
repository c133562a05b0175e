"""What runs inside a member: `gangflow.context()` and what hangs on it. Needs no Ray and no FastAPI."""

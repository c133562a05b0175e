"""Small JSON services of recipes: `serving` answers, `asking` asks again until one does. No numpy, no torch."""

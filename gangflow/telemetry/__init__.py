"""A group's life as OpenTelemetry spans: derived from the journal's events, exported as JSON lines and over OTLP."""

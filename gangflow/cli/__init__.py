"""The two commands: `gangflow` runs groups, `xcecli` looks at XCE in LSF's manner."""

"""What measures: suites, systems and their environments, the runner, and what is written."""

"""The kitchen: one episode of one environment, told as events."""

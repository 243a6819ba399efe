"""The day on a GPU: tests, rates, Pong and profiles, in pieces that resume where they stopped (`make gpu-day`)."""

"""What every package shares: errors, seeding, schedules, nested observations, spaces, data, statistics, protocols."""

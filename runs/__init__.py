"""The record: append-only runs, the leaderboard made from them, and exports of the best."""

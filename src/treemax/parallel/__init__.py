"""Threads, pools of workers, Ray, checkpoints and locks."""

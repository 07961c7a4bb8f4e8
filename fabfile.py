from tasks import *  # noqa: F403  # fab looks for this file's name; the tasks are in tasks.py

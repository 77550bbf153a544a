"""Client and worker for queue_ext, a job queue inside PostgreSQL."""

from .outcomes import Discard, Retry, Snooze, Stopped, Suspended
from .push import push, push_async, push_many, push_many_async
from .task import Task
from .worker import Worker

__all__ = [
    "Discard",
    "Retry",
    "Snooze",
    "Stopped",
    "Suspended",
    "Task",
    "Worker",
    "push",
    "push_async",
    "push_many",
    "push_many_async",
]

"""What does the server learn? Attacks on recorded traffic, and an audit that runs them: docs/privacy.md."""

from __future__ import annotations

from .audit import audit
from .recording import Recording
from .table import ATTACKS, Attack, Case, Model, Outcome

__all__ = ["ATTACKS", "Attack", "Case", "Model", "Outcome", "Recording", "audit"]

"""The embedded author: derives a program from the traced reference by rules, then improves its schedule. Needs no key.

It asks no model, holds no text for any task, and says exactly where its rules end.
"""

from __future__ import annotations

from coda_synth.agent.planner_emit import emit, kernel_names
from coda_synth.agent.planner_rules import derive
from coda_synth.agent.planner_stuck import Stuck
from coda_synth.agent.planner_tune import Exhausted, next_schedule
from coda_synth.agent.provider import Reply, Request
from coda_synth.evaluator.trace import TraceError


class Planner:
    """A Provider. The same request gets the same reply, always: what it knows is the request alone."""

    name = "planner"
    model = "rules"

    def propose(self, request: Request) -> Reply:
        """The derived program, first as it is, then with a schedule that the attempts so far suggest.

        "stuck" where a rule is missing, with the node that stopped it and what would be needed; "done" where no
        schedule is left to try.
        """
        try:
            plan = derive(request.graph())
            proposal = next_schedule(kernel_names(plan), request.attempts)
        except (Stuck, TraceError) as end:
            return Reply(str(end), outcome="stuck", model=self.model)
        except Exhausted as end:
            return Reply(str(end), outcome="done", model=self.model)
        return Reply(f"```python\n{emit(plan, proposal.hints, proposal.reason)}```\n", model=self.model)

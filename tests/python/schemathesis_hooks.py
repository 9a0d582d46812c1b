"""Hooks of schemathesis: what is not tried.

A header that the document does not name is no violation of it, as any proxy adds some; and a request
that gives itself no time tells nothing but that it had none.
"""

import schemathesis

# Seconds that a request may need on a busy machine.
PATIENCE = 20


@schemathesis.hook
def filter_case(context, case) -> bool:
    headers = case.headers or {}
    if "x-schemathesis-unknown-property" in headers:
        return False
    try:
        return not 0 < float(headers.get("x-request-timeout")) < PATIENCE
    except (TypeError, ValueError):
        return True

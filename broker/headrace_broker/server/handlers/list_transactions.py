"""ListTransactions (66): this broker does not support transactions yet, so it returns an empty list (KIP-664).

Version 1 adds the duration filter (KIP-994); version 2 adds the pattern of transactional ids (KIP-1152).
"""

from __future__ import annotations

import regex

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from headrace_broker.protocol.transaction_states import TRANSACTION_STATES
from headrace_broker.server.network.context import RequestContext

API_KEY = ApiKey.LIST_TRANSACTIONS
VERSIONS = (0, 2)


def handle(context: RequestContext, request: ListTransactionsRequest, version: int) -> ListTransactionsResponse:
    """Return no transactions, and list the state filters of the request that are not transaction states in Kafka."""
    if request.transactional_id_pattern:
        try:
            regex.compile(request.transactional_id_pattern)
        except regex.error:
            return ListTransactionsResponse(error_code=ErrorCode.INVALID_REGULAR_EXPRESSION)
    return ListTransactionsResponse(
        unknown_state_filters=[
            state for state in dict.fromkeys(request.state_filters) if state not in TRANSACTION_STATES
        ]
    )

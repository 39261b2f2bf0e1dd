"""A service that mails bills: it handles each in a span of the order's trace, and so asks the table within
it.
"""

from traced_bills import bills

from holdfast import ClaimConsumer, Settings, TableClient


async def mail_one(settings: Settings) -> str:
    async with (
        ClaimConsumer(
            settings, topics=["bills"], group="mail", client="mail-1", heartbeat_interval_s=1
        ) as consumer,
        TableClient(settings, [bills]) as tables,
    ):
        message = await anext(consumer)
        with message.span():
            order = (message.key or b"").decode()
            answer = await tables.get(bills, order)
            message.commit()
        return f"{order}: bill {answer.value}"

"""The worker beside the shop: it charges each order once (``onceward work billing:billing``)."""

from shop import Order

from onceward import Agent, Context, Postbox

billing = Agent("billing")


@billing.at_open
def create_tables(box: Postbox) -> None:
    """Create the table of charges beside those of onceward."""
    with box.begin() as tx:
        tx.execute("CREATE TABLE IF NOT EXISTS charges (order_id TEXT, cents INTEGER)")


@billing.on(Order)
def charge(order: Order, ctx: Context) -> None:
    """Charge an order; the charge and the end of the message are one commit."""
    ctx.tx.execute("INSERT INTO charges VALUES (?, ?)", (order.id, order.cents))

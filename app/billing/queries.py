"""What people read about subscriptions."""

from app.db.engine import Database, Timeouts

_READ = Timeouts(lock=500, statement=1500, idle=2000)


async def count_open(database: Database) -> int:
    """How many rows are undecided: their events of one second do not prove which state stands."""
    async with database.begin(_READ) as connection:
        (row,) = await connection.fetch("SELECT count(*) AS rows FROM subscriptions WHERE open")
    return int(row["rows"])

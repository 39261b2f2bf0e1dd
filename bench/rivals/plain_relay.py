"""The plain outbox relay everybody writes first: lock, produce, flush, delete, commit. No leader, no fence,
one worker.

python -P -m bench.rivals.plain_relay DSN TABLE BOOTSTRAP BATCH
"""

from __future__ import annotations

import sys
import time

import psycopg
from confluent_kafka import KafkaError, Message, Producer


def main() -> None:
    dsn, table, bootstrap, batch = sys.argv[1:]
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "acks": "all"})
    columns = "id,kafka_topic,kafka_key,kafka_value,kafka_header_keys,kafka_header_values"
    take = f"SELECT {columns} FROM {table} ORDER BY id LIMIT {int(batch)} FOR UPDATE SKIP LOCKED"
    failed: list[KafkaError] = []

    def heard(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failed.append(error)

    with psycopg.connect(dsn) as connection:
        while True:
            with connection.cursor() as cursor:
                rows = cursor.execute(take, prepare=True).fetchall()
                if not rows:
                    connection.rollback()
                    time.sleep(0.01)
                    continue
                for _, topic, key, value, names, values in rows:
                    producer.produce(
                        topic, value, key, headers=list(zip(names, values, strict=True)), on_delivery=heard
                    )
                producer.flush()
                if failed:
                    raise SystemExit(str(failed[0]))
                cursor.execute(
                    f"DELETE FROM {table} WHERE id = ANY(%s)", ([row[0] for row in rows],), prepare=True
                )
            connection.commit()


if __name__ == "__main__":
    main()

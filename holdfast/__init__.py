"""holdfast: event-sourced processors on Kafka. Kept free of imports: a Spark executor that imports `holdfast.core` runs this."""

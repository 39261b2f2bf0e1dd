"""Every error a user can meet.

HoldfastError
├── ConfigError              a setting is unknown, malformed or contradicts another
│   └── MigrationError       a row of an earlier version cannot be migrated; nothing was written
├── TopicError               a topic is missing or laid out so that state on it would be wrong
│   ├── ChainError           versions of processors that read from each other do not fit; it says which to raise
│   └── OutOfRangeError      an offset that is needed is not in its log any more
├── DecodeError              the bytes of one record are not what the decoder expects (goes to quarantine)
│   ├── FrameError           a value is not, or may not be written as, a frame of the coordination topic
│   ├── UnknownSchemaError   the registry does not know the schema of a record; it may learn it later
│   ├── FutureTimeError      an event time is further ahead of its append time than its source allows
│   ├── AnnouncementError    a value is not, or may not be written as, an announcement of a balanced group
│   └── WireError            bytes in Kafka's own format are cut short or corrupt, and where
├── FoldError                a fold broke a rule of the framework (goes to quarantine with its record)
├── Later                    what a fold needs is not there yet; its record is folded again, and nothing is lost
├── StillWaitingError        what a fold needs did not come within later_timeout_s
├── StoppedError             a record would be refused, and its processor is declared with on_error="stop"
├── ImpureFoldError          a fold gave something else after a restart or on replay
├── PaceError                final results of a test of a topology depend on the order of reading its sources
├── TopologyError            a test of a topology asks for what it does not have, or processors feed themselves
│   └── UnseenRefusalsError  a test of a topology ends with refused records that it did not look at
├── SchemaError              a schema is not registered, is refused, or does not fit those registered before it
├── StateError               local or logged state is not what it must be
│   ├── StoreError           a RocksDB store cannot be opened or written
│   │   └── RottenStoreError  a store differs from the data written to it; it is set aside and rebuilt
│   ├── ChangelogError       a changelog does not fit: torn, foreign or newer
│   ├── ChoicesError         recorded choices do not fit: one is missing, malformed, or of other sources
│   └── GlobalsError         a global table cannot be read as of the position that was recorded
├── FencedError              a newer owner of this partition exists; this one must stop writing
├── InstanceFencedError      another worker has joined the group with this one's instance_id
├── ClaimError               a claim client cannot do the requested operation
│   ├── ClaimLostError       the message's claim is not held any more: another member may get the message too
│   ├── CommitError          an offset that was never delivered was to be committed
│   ├── InstanceConflictError  a newer process runs under the same client id; this one has stopped
│   ├── ClockSkewError       this machine's clock is too far from the broker's to take part
│   ├── MembershipError      the balanced group does not take this member, or has replaced it by another
│   └── TerminatedError      the client has been terminated, or failed before
├── GroupError               a group cannot be paused, reset or described as asked
│   └── ResetStoppedError    a reset was asked to stop before it was decided
├── BrokerError              Kafka could not be reached or refused, after all retries within the deadline
├── QueryError               a table query could not be answered
│   ├── NotReadyError        the owner is still restoring
│   ├── MovedError           the partition has another owner and one redirect did not find it
│   ├── OffsetTimeoutError   the owner did not reach the awaited offset in time
│   ├── OtherTopicError      the awaited offset is of another topic of the same name
│   ├── NoSuchTableError     no processor of that name in this application
│   └── AccessError          the endpoint asks for a token or certificate that was not given
├── QuarantineError          a refused record cannot be found, or cannot be tried again
├── SkipError                what an operator asks to be skipped of a source cannot be, or need not
├── OutboxError              the outbox could not do the requested operation
│   ├── OutboxRecordError    a record cannot be written as it is given; nothing was written
│   ├── OutboxDroppedError   the database reported success for a statement without its effect
│   ├── OutboxSchemaError    the outbox's tables are missing or not of the layout that was named
│   └── OutboxDatabaseError  the database could not be reached, or refused a statement
├── JarError                 the Java archives that Kafka and Spark run on could not be had
│   ├── JarChecksumError     a fetched archive is not the one that the lock file names
│   └── JavaMissingError     no JDK, or one that is too old
├── PipelineError            landing, replaying or verifying could not continue
│   ├── SparkError           Spark is missing, did not start, or a job of it failed
│   ├── LostRecordsError     records that are needed are not in the topic any more
│   ├── UnreadableError      a batch of the source is corrupt or unpacks to too much, and is not skipped
│   ├── LakeError            a table of the lake does not continue where it must: overlap, hole, foreign rows
│   │   ├── UnknownCommitError   whether a commit was made is not known; files that it may name are kept
│   │   ├── LinkTakenError       another commit follows the one that a landing continued from
│   │   └── RepeatedOffsetError  an offset is in a table of the lake twice
│   └── OrderError           records of a partition came out of offset order; never folded
├── DevBrokerError           the local development broker could not be set up or started
│   └── BrokerFolderError    the folder of an embedded Kafka cannot be read or written, or is damaged
├── WorkersError             a worker that `holdfast worker` keeps running fails to start again and again
└── DemoError                something the demo shows did not hold, or could not be shown
"""  # noqa: E501

from __future__ import annotations


class HoldfastError(Exception):
    """Base of every operating error; bugs are asserts."""


class ConfigError(HoldfastError):
    """A setting is unknown, malformed or contradicts another.

    Several wrong settings are several arguments, a line each.
    """

    def __str__(self) -> str:
        return "\n".join(map(str, self.args))


class TopicError(HoldfastError):
    """A topic is missing or laid out so that state on it would be wrong."""


class MigrationError(ConfigError):
    """A table cannot begin with the rows of an earlier version: it says which row, or why none. Nothing was
    written.
    """


class ChainError(TopicError):
    """A processor was raised to another version without those that read what it emits; it says which to
    raise.
    """


class OutOfRangeError(TopicError):
    """An offset that is needed is not in its log any more."""


class DecodeError(HoldfastError, ValueError):
    """The bytes of one record are not what the decoder expects."""


class UnknownSchemaError(DecodeError):
    """The registry does not know the schema of a record; it may learn it later."""


class FutureTimeError(DecodeError):
    """An event time is further ahead of its append time than its source allows."""


class FrameError(DecodeError):
    """A value is not, or may not be written as, a frame of the coordination topic.

    *reason* is the class of error, *text* the whole story.
    """

    def __init__(self, text: str, reason: str = "") -> None:
        super().__init__(text)
        self.reason = reason


class WireError(DecodeError):
    """Bytes in Kafka's own format are cut short or corrupt.

    *offset* is the byte where that shows, *reason* the class of error.
    """

    def __init__(self, text: str, *, offset: int, reason: str = "") -> None:
        super().__init__(f"at byte {offset}: {text}")
        self.offset, self.reason = offset, reason


class AnnouncementError(DecodeError):
    """A value is not, or may not be written as, an announcement of a balanced group.

    *reason* is the class of error.
    """

    def __init__(self, text: str, reason: str = "") -> None:
        super().__init__(text)
        self.reason = reason


class FoldError(HoldfastError):
    """A fold broke a rule of the framework."""


class Later(HoldfastError):
    """A fold's or a serde's need is not there yet. The record is folded again later, and is never refused.

    Raise it from a decoder, a fold, a timer's function, a serde or a `time`; that is all there is to do. It
    must depend on whether something is there, never on its content: a fold's result for a record depends on
    its arguments alone.

    Attributes:
        needs: the missing need, as an operator knows it, such as ``schema registry http://localhost:8081``.
        at: where it was raised: the topic ("" for the only source) and the offset of the record, of a tick
        the number
            of its choice. holdfast sets it.
    """

    def __init__(self, text: str, *, needs: str) -> None:
        super().__init__(text)
        self.needs = needs
        self.at: tuple[str, int] | None = None


class StillWaitingError(HoldfastError):
    """A fold's need was not met within `later_timeout_s`. Nothing was refused; *needs* names it."""

    def __init__(self, text: str, *, needs: str) -> None:
        super().__init__(text)
        self.needs = needs


class StoppedError(HoldfastError):
    """A record would be refused, and its processor is declared with ``on_error="stop"``: nothing of it is
    folded.

    *topic* ("" for the only source) and *offset* identify it, of a tick the number of its choice; *stage*,
    *error* and *reason* are those of the refusal.
    """

    def __init__(self, *, topic: str, offset: int, stage: str, error: str, reason: str) -> None:
        super().__init__(f"at {stage}: {error}: {reason}")
        self.topic, self.offset, self.stage, self.error, self.reason = topic, offset, stage, error, reason


class SchemaError(HoldfastError):
    """A schema is not registered, is refused by its registry, or does not fit the schemas registered before
    it.
    """


class ImpureFoldError(HoldfastError):
    """A fold gave something else after a restart or on replay: it uses more than its arguments."""


class PaceError(HoldfastError):
    """Final results of a test of a topology depend on the order in which records of several source partitions
    are read.
    """


class TopologyError(HoldfastError):
    """A test of a topology asks for what it does not have, or its processors feed themselves."""


class UnseenRefusalsError(TopologyError):
    """A test of a topology ends with refused records, and has not looked at `Topology.refused`."""


class StateError(HoldfastError):
    """Local or logged state is not what it must be."""


class StoreError(StateError):
    """A RocksDB store cannot be opened or written."""


class RottenStoreError(StoreError):
    """A store differs from the written data: bytes fail a checksum, or rows differ from the changelog."""


class ChangelogError(StateError):
    """A changelog does not fit: torn, foreign or newer."""


class ChoicesError(StateError):
    """Recorded choices do not fit: one is missing, malformed, of other sources, or after the state."""


class GlobalsError(StateError):
    """A global table cannot be read as of the position that was recorded: its log lacks records, or a copy
    lags.
    """


class FencedError(HoldfastError):
    """A newer owner of this partition exists; this one must stop writing."""


class InstanceFencedError(HoldfastError):
    """Another worker has joined the group with this one's instance_id; this one ends."""


class ClaimError(HoldfastError):
    """A claim client cannot do the requested operation."""


class ClaimLostError(ClaimError):
    """The message's claim is not held any more: its offset is not committed, another member may get the
    message too.
    """


class CommitError(ClaimError):
    """An offset that was never delivered was to be committed."""


class InstanceConflictError(ClaimError):
    """A newer process runs under the same client id; this one has stopped."""


class ClockSkewError(ClaimError):
    """This machine's clock is too far from the broker's to take part."""


class MembershipError(ClaimError):
    """The balanced group does not take this member, or has replaced it by another.

    *code* is Kafka's error code.
    """

    def __init__(self, text: str, code: int = -1) -> None:
        super().__init__(text)
        self.code = code


class TerminatedError(ClaimError):
    """The client has been terminated, or failed before."""


class GroupError(HoldfastError):
    """A group cannot be paused, reset or described as asked: the text names the obstacle."""


class ResetStoppedError(GroupError):
    """A reset was asked to stop before it was decided: every partition keeps its offset.

    Where giving the partitions back failed too, a note (``__notes__``) says so.
    """


class BrokerError(HoldfastError):
    """Kafka could not be reached or refused, after all retries within the deadline."""


class QueryError(HoldfastError):
    """A table query could not be answered."""


class NotReadyError(QueryError):
    """The owner is still restoring."""


class MovedError(QueryError):
    """The partition has another owner and one redirect did not find it."""


class OffsetTimeoutError(QueryError):
    """The owner did not reach the awaited offset in time."""


class OtherTopicError(QueryError):
    """The awaited offset is of another topic of the same name: one was deleted and made again."""


class NoSuchTableError(QueryError):
    """No processor of that name in this application."""


class AccessError(QueryError):
    """The endpoint asks for a token or certificate that was not given."""


class QuarantineError(HoldfastError):
    """A refused record cannot be found, or cannot be tried again."""


class SkipError(HoldfastError):
    """A requested skip of a source cannot be made, or need not: the offsets can be read, or are skipped
    already.
    """


class OutboxError(HoldfastError):
    """The outbox could not do the requested operation."""


class OutboxRecordError(OutboxError, ValueError):
    """A record cannot be written as it is given; nothing was written."""


class OutboxDroppedError(OutboxError):
    """The database reported success for a statement whose rows it did not store, change or delete."""


class OutboxSchemaError(OutboxError):
    """The outbox's tables are missing or not of the layout that was named."""


class OutboxDatabaseError(OutboxError):
    """The database could not be reached, or refused a statement.

    *is_lost* says that the connection is gone and the call may be repeated.
    """

    def __init__(self, text: str, *, is_lost: bool = False) -> None:
        super().__init__(text)
        self.is_lost = is_lost


class JarError(HoldfastError):
    """The Java archives that Kafka and Spark run on could not be had."""


class JarChecksumError(JarError):
    """A fetched archive is not the one that the lock file names."""


class JavaMissingError(JarError):
    """No JDK, or one that is too old."""


class PipelineError(HoldfastError):
    """Landing, replaying or verifying could not continue."""


class SparkError(PipelineError):
    """Spark is missing, did not start, or a job of it failed."""


class LostRecordsError(PipelineError):
    """Records that are needed are not in the topic any more."""


class UnreadableError(PipelineError):
    """A batch of the source is corrupt, or unpacks to more than a limit, and is not skipped."""


class LakeError(PipelineError):
    """A table of the lake does not continue where it must: overlap, hole, foreign rows."""


class UnknownCommitError(LakeError):
    """It is not known whether a commit was made, since the table cannot be read; files that it may name are
    kept.
    """


class LinkTakenError(LakeError):
    """Another commit follows the one that a landing continued from; nothing was written by the landing."""


class RepeatedOffsetError(LakeError):
    """An offset is in a table of the lake twice."""


class OrderError(PipelineError):
    """Records of a partition came out of offset order; they are never folded so."""


class DevBrokerError(HoldfastError):
    """The local development broker could not be set up or started."""


class BrokerFolderError(DevBrokerError):
    """The folder of an embedded Kafka cannot be read or written, is damaged, or is another's."""


class DemoError(HoldfastError):
    """Something the demo shows did not hold, or could not be shown."""


class WorkersError(HoldfastError):
    """A worker that `holdfast worker --processes` keeps running fails to start again and again."""


class AppendTimeWarning(UserWarning):
    """A window or join takes records by append time because no `time=` was given."""

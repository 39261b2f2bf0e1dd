// Copies records exactly once with sarama: program BOOTSTRAP. For each strategy, two members that join together share the partitions of a
// topic that an idempotent producer has filled; each partition is copied by transactions, of which every fifth is aborted and done again.
package main

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/IBM/sarama"
)

const (
	partitions = 4
	records    = 200
	limit      = 300 * time.Second
)

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func config() *sarama.Config {
	found := sarama.NewConfig()
	found.Version = sarama.V4_0_0_0
	found.Producer.Idempotent = true
	found.Producer.RequiredAcks = sarama.WaitForAll
	found.Producer.Return.Successes = true
	found.Net.MaxOpenRequests = 1
	found.Consumer.Offsets.Initial = sarama.OffsetOldest
	found.Consumer.Offsets.AutoCommit.Enable = false
	found.Consumer.IsolationLevel = sarama.ReadCommitted
	return found
}

// fill writes the records to a topic, by an idempotent producer.
func fill(bootstrap string, topic string) {
	told := config()
	told.Producer.Partitioner = sarama.NewRoundRobinPartitioner
	producer, err := sarama.NewSyncProducer([]string{bootstrap}, told)
	must(err)
	for number := range records {
		_, _, err = producer.SendMessage(&sarama.ProducerMessage{Topic: topic, Value: sarama.StringEncoder(fmt.Sprint(number))})
		must(err)
	}
	must(producer.Close())
}

// copier is a member of the group: it tells how many partitions each of its generations has.
type copier struct {
	bootstrap, to, group string
	shares               chan int
	copied               *sync.WaitGroup
}

func (own *copier) Setup(session sarama.ConsumerGroupSession) error {
	count := 0
	for _, claims := range session.Claims() {
		count += len(claims)
	}
	own.shares <- count
	return nil
}

func (own *copier) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (own *copier) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	told := config()
	told.Producer.Transaction.ID = fmt.Sprintf("%s-%d", own.group, claim.Partition())
	producer, err := sarama.NewAsyncProducer([]string{own.bootstrap}, told)
	if err != nil {
		return err
	}
	go func() {
		for range producer.Successes() {
		}
	}()
	go func() {
		for range producer.Errors() {
		}
	}()
	defer producer.AsyncClose()
	number := 0
	for {
		select {
		case message, ok := <-claim.Messages():
			if !ok {
				return nil
			}
			if number%5 == 4 {
				if err := own.write(producer, message); err != nil {
					return err
				}
				if err := producer.AbortTxn(); err != nil {
					return err
				}
			}
			if err := own.write(producer, message); err != nil {
				return err
			}
			if err := producer.AddMessageToTxn(message, own.group, nil); err != nil {
				return err
			}
			if err := producer.CommitTxn(); err != nil {
				return err
			}
			own.copied.Done()
			number++
		case <-session.Context().Done():
			return nil
		}
	}
}

func (own *copier) write(producer sarama.AsyncProducer, message *sarama.ConsumerMessage) error {
	if err := producer.BeginTxn(); err != nil {
		return err
	}
	producer.Input() <- &sarama.ProducerMessage{Topic: own.to, Value: sarama.ByteEncoder(message.Value)}
	return nil
}

// copies has two members that join together copy the topic, and returns how many partitions each has at last.
func copies(bootstrap string, from string, to string, group string, strategy sarama.BalanceStrategy) []int {
	var copied, ended sync.WaitGroup
	copied.Add(records)
	ctx, cancel := context.WithCancel(context.Background())
	shares := make([]chan int, 2)
	for number := range shares {
		shares[number] = make(chan int, 100)
		told := config()
		told.Consumer.Group.Rebalance.GroupStrategies = []sarama.BalanceStrategy{strategy}
		member, err := sarama.NewConsumerGroup([]string{bootstrap}, group, told)
		must(err)
		ended.Go(func() {
			for ctx.Err() == nil {
				must(member.Consume(ctx, []string{from}, &copier{bootstrap, to, group, shares[number], &copied}))
			}
			must(member.Close())
		})
	}
	last := make([]int, 2)
	for last[0]+last[1] != partitions || last[0] == 0 || last[1] == 0 {
		select {
		case last[0] = <-shares[0]:
		case last[1] = <-shares[1]:
		case <-time.After(limit):
			panic(fmt.Sprint("no share for each member: ", last))
		}
	}
	copied.Wait()
	cancel()
	ended.Wait()
	return last
}

func main() {
	bootstrap := os.Args[1]
	admin, err := sarama.NewClusterAdmin([]string{bootstrap}, config())
	must(err)
	strategies := []sarama.BalanceStrategy{
		sarama.NewBalanceStrategyRange(), sarama.NewBalanceStrategyRoundRobin(), sarama.NewBalanceStrategySticky(),
	}
	for _, strategy := range strategies {
		from, to, group := "from-"+strategy.Name(), "to-"+strategy.Name(), "copiers-"+strategy.Name()
		for _, topic := range []string{from, to} {
			must(admin.CreateTopic(topic, &sarama.TopicDetail{NumPartitions: partitions, ReplicationFactor: 1}, false))
		}
		fill(bootstrap, from)
		shares := copies(bootstrap, from, to, group, strategy)
		offsets, err := admin.ListConsumerGroupOffsets(group, nil)
		must(err)
		committed := int64(0)
		for _, block := range offsets.Blocks[from] {
			committed += block.Offset
		}
		must(admin.DeleteConsumerGroup(group))
		must(admin.DeleteTopic(from))
		fmt.Println(strategy.Name(), shares, committed)
	}
	must(admin.Close())
}

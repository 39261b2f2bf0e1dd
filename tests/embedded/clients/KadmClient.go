// Administers a broker with kadm, and tells what it is answered: program BOOTSTRAP. The broker has an authorizer and lets everybody do
// what no rule is about.
package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

const topic, group, id = "orders", "readers", "writer"

func must[T any](found T, err error) T {
	if err != nil {
		panic(err)
	}
	return found
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

// topics makes, describes, grows, and configures.
func topics(ctx context.Context, admin *kadm.Client) {
	value := "compact"
	made := must(admin.CreateTopics(ctx, 3, 1, map[string]*string{"cleanup.policy": &value}, topic, "other", "bad name"))
	for _, each := range made.Sorted() {
		fmt.Println("created", each.Topic, each.NumPartitions, each.Err)
	}
	fmt.Println("again", must(admin.CreateTopics(ctx, 3, 1, nil, topic))[topic].Err)
	grown := must(admin.CreatePartitions(ctx, 1, topic))
	fmt.Println("grown", grown[topic].Err)
	fmt.Println("listed", must(admin.ListTopics(ctx)).Names(), len(must(admin.ListTopics(ctx, topic))[topic].Partitions))
	other := "delete"
	changes := []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "cleanup.policy", Value: &other}}
	fmt.Println("altered", must(admin.AlterTopicConfigs(ctx, changes, topic))[0].Err)
	told := must(must(admin.DescribeTopicConfigs(ctx, topic)).On(topic, nil))
	for _, each := range told.Configs {
		if each.Key == "cleanup.policy" {
			fmt.Println("config", each.MaybeValue(), each.Source)
		}
	}
	brokers := must(admin.ListBrokers(ctx))
	fmt.Println("brokers", brokers.NodeIDs(), len(must(admin.DescribeBrokerConfigs(ctx, brokers.NodeIDs()...))[0].Configs) > 0)
	fmt.Println("directories", len(must(admin.DescribeAllLogDirs(ctx, nil))))
	fmt.Println("versions", len(must(admin.ApiVersions(ctx)).Sorted()))
	elected := must(admin.ElectLeaders(ctx, kadm.ElectPreferredReplica, nil))
	fmt.Println("elected", len(elected))
	fmt.Println("moving", len(must(admin.ListPartitionReassignments(ctx, nil))))
}

// records writes within a transaction, and looks at it.
func records(ctx context.Context, bootstrap string, admin *kadm.Client) {
	client := must(kgo.NewClient(kgo.SeedBrokers(bootstrap), kgo.TransactionalID(id), kgo.RecordPartitioner(kgo.ManualPartitioner())))
	defer client.Close()
	check(client.BeginTransaction())
	for partition := range int32(4) {
		for number := range 10 {
			record := &kgo.Record{Topic: topic, Partition: partition, Value: []byte(fmt.Sprint(number))}
			check(client.ProduceSync(ctx, record).FirstErr())
		}
	}
	found := must(admin.DescribeTransactions(ctx, id))[id]
	fmt.Println("transaction", found.State, found.Topics.Sorted()[0].Topic, found.Err)
	wanted := kadm.TopicsSet{}
	wanted.Add(topic, 0)
	producers := must(admin.DescribeProducers(ctx, wanted)).SortedProducers()
	fmt.Println("producers", len(producers), producers[0].LastSequence, producers[0].CurrentTxnStartOffset)
	check(client.EndTransaction(ctx, kgo.TryCommit))
	fmt.Println("transactions", must(admin.ListTransactions(ctx, nil, nil)).TransactionalIDs())
	sum := func(listed kadm.ListedOffsets) int64 {
		check(listed.Error())
		total := int64(0)
		listed.Each(func(each kadm.ListedOffset) { total += each.Offset })
		return total
	}
	fmt.Println("offsets", sum(must(admin.ListStartOffsets(ctx, topic))), sum(must(admin.ListEndOffsets(ctx, topic))),
		sum(must(admin.ListCommittedOffsets(ctx, topic))), sum(must(admin.ListOffsetsAfterMilli(ctx, 0, topic))))
	before := kadm.Offsets{}
	before.AddOffset(topic, 0, 5, -1)
	fmt.Println("deleted", must(admin.DeleteRecords(ctx, before)).Sorted()[0].LowWatermark)
}

// groups commits, describes, and deletes, with a member and without.
func groups(ctx context.Context, bootstrap string, admin *kadm.Client) {
	offsets := kadm.Offsets{}
	for partition := range int32(4) {
		offsets.AddOffset(topic, partition, 7, -1)
	}
	check(admin.CommitAllOffsets(ctx, group, offsets))
	fmt.Println("committed", len(must(admin.FetchOffsets(ctx, group))[topic]), must(must(admin.Lag(ctx, group))[group].Lag.Total(), nil))
	client := must(kgo.NewClient(kgo.SeedBrokers(bootstrap), kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic),
		kgo.Balancers(kgo.CooperativeStickyBalancer()), kgo.DisableAutoCommit()))
	client.PollFetches(ctx)
	told := must(admin.DescribeGroups(ctx, group))[group]
	fmt.Println("group", told.State, told.ProtocolType, told.Protocol, len(told.Members), len(told.AssignedPartitions()[topic]))
	fmt.Println("deleted", must(admin.DeleteGroups(ctx, group, "absent")).Sorted())
	client.Close()
	fmt.Println("empty", must(admin.DescribeGroups(ctx, group))[group].State, must(admin.ListGroups(ctx)).Groups())
	first := kadm.TopicsSet{}
	first.Add(topic, 0)
	fmt.Println("offset deleted", must(admin.DeleteOffsets(ctx, group, first)).Error(), len(must(admin.FetchOffsets(ctx, group))[topic]))
	_, err := admin.DeleteGroup(ctx, group)
	fmt.Println("group deleted", err, len(must(admin.ListGroups(ctx))))
}

// rules makes, finds, and removes those of access, and passwords.
func rules(ctx context.Context, admin *kadm.Client) {
	asked := kadm.NewACLs().Topics("theirs", "others").Groups("theirs").Allow("User:alice").AllowHosts("*").
		Operations(kadm.OpRead, kadm.OpDescribe).ResourcePatternType(kadm.ACLPatternPrefixed)
	for _, each := range must(admin.CreateACLs(ctx, asked)) {
		check(each.Err)
	}
	wanted := kadm.NewACLs().Topics("theirs").Groups().Allow().AllowHosts().Operations().ResourcePatternType(kadm.ACLPatternMatch)
	lines := []string{}
	for _, result := range must(admin.DescribeACLs(ctx, wanted)) {
		check(result.Err)
		for _, each := range result.Described {
			lines = append(lines, fmt.Sprint(each.Type, " ", each.Name, " ", each.Pattern, " ", each.Operation, " ", each.Principal))
		}
	}
	slices.Sort(lines)
	fmt.Println("rules", strings.Join(lines, ", "))
	removed := 0
	for _, result := range must(admin.DeleteACLs(ctx, kadm.NewACLs().AnyResource().Allow("User:alice").AllowHosts().Operations().
		ResourcePatternType(kadm.ACLPatternAny))) {
		check(result.Err)
		removed += len(result.Deleted)
	}
	fmt.Println("removed", removed)
	set := kadm.UpsertSCRAM{User: "carol", Mechanism: kadm.ScramSha256, Iterations: 4096, Password: "secret"}
	for _, each := range must(admin.AlterUserSCRAMs(ctx, nil, []kadm.UpsertSCRAM{set})) {
		fmt.Println("password", each.User, each.Err)
	}
	fmt.Println("passwords", must(admin.DescribeUserSCRAMs(ctx))["carol"].CredInfos)
}

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	bootstrap := os.Args[1]
	client := must(kgo.NewClient(kgo.SeedBrokers(bootstrap)))
	defer client.Close()
	admin := kadm.NewClient(client)
	topics(ctx, admin)
	records(ctx, bootstrap, admin)
	groups(ctx, bootstrap, admin)
	rules(ctx, admin)
	for _, each := range must(admin.DeleteTopics(ctx, topic, "absent")).Sorted() {
		fmt.Println("deleted", each.Topic, each.Err)
	}
}

// A member of a group, or a producer, with franz-go; `compat/members/__init__.py` says what it takes and tells.
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

func main() {
	bootstrap, topic, role, what := os.Args[1], os.Args[2], os.Args[3], os.Args[4]
	options := []kgo.Opt{kgo.SeedBrokers(bootstrap)}
	group := []kgo.Opt{
		kgo.ConsumerGroup(what), kgo.ConsumeTopics(topic), kgo.DisableAutoCommit(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.BlockRebalanceOnPoll(),
		kgo.SessionTimeout(10 * time.Second), kgo.HeartbeatInterval(300 * time.Millisecond),
	}
	switch role {
	case "classic":
		options = append(options, group...)
	case "consumer":
		options = append(options, append(group, kgo.ServerSideBalancer(), kgo.Balancers(kgo.RangeBalancer()))...)
	case "share":
		options = append(options, kgo.ShareGroup(what), kgo.ConsumeTopics(topic))
	default:
		options = append(options, kgo.DefaultProduceTopic(topic))
	}
	client, err := kgo.NewClient(options...)
	check(err)
	defer client.Close()
	if role == "produce" {
		produce(client, what)
		return
	}
	reading, stop := context.WithCancel(context.Background())
	go func() {
		io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	for reading.Err() == nil {
		fetches := client.PollRecords(reading, 50)
		records := fetches.Records()
		if len(records) > 0 {
			acknowledge(client, role, records)
			for _, record := range records {
				fmt.Println(record.Partition, record.Offset)
			}
		}
		client.AllowRebalance()
	}
	check(client.LeaveGroupContext(context.Background()))
}

func acknowledge(client *kgo.Client, role string, records []*kgo.Record) {
	if role == "share" {
		client.MarkAcks(kgo.AckAccept, records...)
		check(client.FlushAcks(context.Background()))
		return
	}
	check(client.CommitRecords(context.Background(), records...))
}

func produce(client *kgo.Client, count string) {
	number, err := strconv.Atoi(count)
	check(err)
	for each := range number {
		record := &kgo.Record{Key: []byte(strconv.Itoa(each)), Value: []byte(strconv.Itoa(each))}
		client.Produce(context.Background(), record, func(_ *kgo.Record, err error) { check(err) })
	}
	check(client.Flush(context.Background()))
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

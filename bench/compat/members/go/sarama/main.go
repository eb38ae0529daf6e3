// A member of a group, or a producer, with sarama; `compat/members/__init__.py` says what it takes and tells.
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"strconv"
	"time"

	"github.com/IBM/sarama"
)

func main() {
	bootstrap, topic, role, what := os.Args[1], os.Args[2], os.Args[3], os.Args[4]
	config := sarama.NewConfig()
	config.Version = sarama.MaxVersion
	if role == "produce" {
		produce(bootstrap, topic, what, config)
		return
	}
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Offsets.AutoCommit.Enable = false
	config.Consumer.Group.Heartbeat.Interval = 300 * time.Millisecond
	group, err := sarama.NewConsumerGroup([]string{bootstrap}, what, config)
	check(err)
	reading, stop := context.WithCancel(context.Background())
	go func() {
		io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	for reading.Err() == nil {
		check(group.Consume(reading, []string{topic}, member{}))
	}
	check(group.Close())
}

type member struct{}

func (member) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (member) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (member) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for {
		select {
		case message, isThere := <-claim.Messages():
			if !isThere {
				return nil
			}
			session.MarkMessage(message, "")
			session.Commit()
			fmt.Println(message.Partition, message.Offset)
		case <-session.Context().Done():
			return nil
		}
	}
}

func produce(bootstrap, topic, count string, config *sarama.Config) {
	config.Net.MaxOpenRequests = 1
	config.Producer.Idempotent = true
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Return.Successes = true
	producer, err := sarama.NewSyncProducer([]string{bootstrap}, config)
	check(err)
	number, err := strconv.Atoi(count)
	check(err)
	messages := make([]*sarama.ProducerMessage, number)
	for each := range messages {
		value := sarama.StringEncoder(strconv.Itoa(each))
		messages[each] = &sarama.ProducerMessage{Topic: topic, Key: value, Value: value}
	}
	check(producer.SendMessages(messages))
	check(producer.Close())
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

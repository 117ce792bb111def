// Creates a transactional producer with sarama or franz-go, and prints the error: main sarama|franz-go ADDRESS
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/IBM/sarama"
	"github.com/twmb/franz-go/pkg/kgo"
)

func main() {
	address := os.Args[2]
	switch os.Args[1] {
	case "sarama":
		fmt.Println(startSaramaTransaction(address))
	case "franz-go":
		fmt.Println(startFranzTransaction(address))
	}
}

func startSaramaTransaction(address string) error {
	config := sarama.NewConfig()
	config.Version = sarama.MaxVersion
	config.Producer.Idempotent = true
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Return.Successes = true
	config.Producer.Transaction.ID = "t"
	config.Producer.Transaction.Retry.Max = 2
	config.Net.MaxOpenRequests = 1
	_, err := sarama.NewSyncProducer([]string{address}, config)
	return err
}

func startFranzTransaction(address string) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(address), kgo.TransactionalID("t"))
	if err != nil {
		return err
	}
	defer client.Close()
	if err := client.BeginTransaction(); err != nil {
		return err
	}
	timeout, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	return client.ProduceSync(timeout, &kgo.Record{Topic: "t", Value: []byte("v")}).FirstErr()
}

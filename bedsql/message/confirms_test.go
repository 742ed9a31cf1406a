package message

import (
	"reflect"
	"testing"
)

type saramaConfig struct{ Producer struct{ RequiredAcks int16 } }

type kafkaPublisher struct {
	config struct{ OverwriteSaramaConfig *saramaConfig }
}

type amqpPublisher struct {
	config struct {
		Publish   struct{ ConfirmDelivery, Transactional bool }
		Marshaler any
	}
}

// Watermill's default for Kafka is the acknowledgement of one replica, and the message is lost
// with that replica.
func TestPublisherIsKnownToConfirmByItsSettings(t *testing.T) {
	t.Parallel()
	for acks, want := range map[int16]bool{-1: true, 0: false, 1: false} {
		var p kafkaPublisher
		p.config.OverwriteSaramaConfig = &saramaConfig{}
		p.config.OverwriteSaramaConfig.Producer.RequiredAcks = acks
		if confirmsBy("kafka", "pkg/kafka", reflect.ValueOf(&p)) != want {
			t.Errorf("Kafka with RequiredAcks %d: %v", acks, !want)
		}
	}
	for transient, want := range map[bool]bool{false: true, true: false} {
		var p amqpPublisher
		p.config.Publish.ConfirmDelivery = true
		p.config.Marshaler = struct{ NotPersistentDeliveryMode bool }{transient}
		if confirmsBy("amqp", "v3/pkg/amqp", reflect.ValueOf(&p)) != want {
			t.Errorf("AMQP whose messages do not survive a restart (%v): %v", transient, !want)
		}
	}
}

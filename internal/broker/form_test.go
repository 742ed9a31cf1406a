package broker

import (
	"strings"
	"testing"
)

func TestMessageThatItsBrokerNeverTakesIsKnown(t *testing.T) {
	t.Parallel()
	with := func(key, value string) *Message {
		return &Message{ID: "m", UUID: "m", Topic: "orders", Metadata: map[string]string{key: value}}
	}
	for name, c := range map[string]struct {
		form Form
		m    *Message
		most int
		bad  bool
	}{
		"AMQP's frame_max":      {AMQPForm, with("blob", strings.Repeat("y", 200<<10)), DefaultFrameMax, true},
		"below it":              {AMQPForm, with("blob", strings.Repeat("y", 120<<10)), DefaultFrameMax, false},
		"no frame_max":          {AMQPForm, with("blob", strings.Repeat("y", 200<<10)), 0, false},
		"RabbitMQ's CC":         {AMQPForm, with("CC", "a"), 0, true},
		"a long key":            {AMQPForm, with(strings.Repeat("k", 256), "a"), 0, true},
		"JetStream's 64 KiB":    {NATSForm, with("blob", strings.Repeat("y", 64<<10)), 0, true},
		"below them":            {NATSForm, with("blob", strings.Repeat("y", 60<<10)), 0, false},
		"a blank in NATS":       {NATSForm, with("a b", "c"), 0, true},
		"Kafka takes all":       {KafkaForm, with("CC", strings.Repeat("y", 200<<10)), 0, false},
		"one that is not known": {AnyForm, with("CC", strings.Repeat("y", 64<<10)), 0, true},
	} {
		if err := c.form.Check(c.m, c.most); (err != nil) != c.bad {
			t.Errorf("%s: %v", name, err)
		}
	}
}

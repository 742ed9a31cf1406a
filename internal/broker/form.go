package broker

import (
	"errors"
	"fmt"
	"net/textproto"
	"regexp"
	"slices"
	"strings"
)

// Form is a broker's form of topics and metadata.
type Form uint8

const (
	// AnyForm is the form of an unknown broker: a message counts as too large if one of the
	// brokers never accepts it.
	AnyForm Form = iota
	// NATSForm sends metadata as NATS headers.
	NATSForm
	// AMQPForm sends metadata as AMQP headers.
	AMQPForm
	// KafkaForm counts metadata as a part of the message.
	KafkaForm
)

// System is the broker's name in OpenTelemetry; watermill for any other publisher.
func (f Form) System() string { return [...]string{"watermill", "nats", "rabbitmq", "kafka"}[f] }

const (
	// maxNATSHeader is JetStream's limit for headers, less bed's own.
	maxNATSHeader = 64<<10 - 1 - 256
	// DefaultFrameMax is RabbitMQ's frame_max. The header frame is not split.
	DefaultFrameMax = 128 << 10
	// amqpOverhead is an upper bound for a header frame without the metadata.
	amqpOverhead = 256
)

// natsMsgID makes JetStream drop the second message with its value.
const natsMsgID = "Nats-Msg-Id"

// informs are the headers that NATS adds on delivery. They have no effect.
var informs = []string{"nats-stream", "nats-subject", "nats-sequence", "nats-time-stamp", "nats-last-sequence", "nats-stream-source", "nats-msg-size", "nats-num-pending", "nats-upto-sequence"}

// IDHeader reports whether metadata of this name would replace the id of the message for
// consumers or brokers. No sender includes it.
func IDHeader(name string) bool {
	return strings.EqualFold(name, UUIDHeader) || strings.EqualFold(name, natsMsgID)
}

// Orders reports whether metadata of this name would be a command to a broker.
func Orders(name string) bool {
	lower := strings.ToLower(name)
	return strings.HasPrefix(lower, "nats-") && lower != strings.ToLower(natsMsgID) && !slices.Contains(informs, lower)
}

// own drops metadata that would replace the message's id, and rejects commands to a broker.
func (m *Message) own() error {
	kept := make(map[string]string, len(m.Metadata))
	for key, value := range m.Metadata {
		if Orders(key) {
			return fmt.Errorf("the metadata %q are an order to NATS itself, which may purge, reject or expire messages: give them another name", key)
		}
		if !IDHeader(key) {
			kept[key] = value
		}
	}
	m.Metadata = kept // the application's own map stays as it is
	return nil
}

// headerKey matches the keys that nats.go accepts.
var headerKey = regexp.MustCompile("^[!#-'*+.0-9A-Z^_`a-z|~-]+$")

// Check returns an error if a broker with this form never accepts the message. frameMax
// belongs to the AMQP connection; 0 means no limit.
func (f Form) Check(m *Message, frameMax int) error {
	size, longest := 0, len(m.Topic)
	for key, value := range m.Metadata {
		size, longest = size+len(key)+len(value)+6, max(longest, len(key)) // 6: AMQP's, NATS takes 4
		switch {
		case f == NATSForm && (!headerKey.MatchString(key) || value != textproto.TrimString(value) || strings.ContainsAny(value, "\r\n")):
			return errors.New("NATS refuses or changes such metadata: a key must be ASCII letters, digits or any of !#$%&'*+-.^_`|~, " +
				"and a value have no line breaks, and no blanks at its ends")
		case f == AMQPForm && (key == "CC" || key == "BCC"):
			return fmt.Errorf("RabbitMQ takes the metadata %q for a list of routing keys: give them another name", key)
		}
	}
	switch {
	case f == AMQPForm && longest > 255:
		return errors.New("AMQP has no room for a topic or a metadata key of more than 255 bytes")
	case (f == NATSForm || f == AnyForm) && size > maxNATSHeader:
		return fmt.Errorf("the metadata take %d bytes, and JetStream stores at most %d: put what is large into the payload", size, maxNATSHeader)
	case f == AMQPForm && frameMax > 0 && size+amqpOverhead > frameMax:
		return fmt.Errorf("the metadata take %d bytes, and AMQP sends at most %d (frame_max %d)", size, frameMax-amqpOverhead, frameMax)
	}
	return nil
}

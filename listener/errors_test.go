package listener_test

import (
	"io"
	"strings"
	"testing"
	"time"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/listener"
)

func TestAPendingErrorSaysWhenTheJobDelivers(t *testing.T) {
	t.Parallel()
	text := (&listener.PendingError{DataSource: "orders", EntryID: "id", Cause: io.EOF}).Error()
	var job asyncjob.Config
	if !strings.Contains(text, "once the entry is as old as the job's MaxDeliveryTryDelay (60 s by default)") || job.WithDefaults().MaxDeliveryTryDelay != 60*time.Second {
		t.Errorf("it says %q", text)
	}
}

package capacity

import (
	"fmt"
	"os"
	"testing"

	gomysql "github.com/go-sql-driver/mysql"
)

func TestMain(m *testing.M) {
	_ = gomysql.SetLogger(new(gomysql.NopLogger))
	if text := os.Getenv(enduringEnv); text != "" {
		if err := endure(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

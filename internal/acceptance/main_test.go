package acceptance

import (
	"fmt"
	"os"
	"testing"

	"github.com/go-sql-driver/mysql"
	"go.uber.org/goleak"

	"github.com/bedsql/bed/internal/cli"
)

// beProgram in the environment makes the test binary one of programs, for
// tests of what becomes of a process that ends.
const beProgram = "BED_ACCEPTANCE_BE_PROGRAM"

// programs give their exit status.
var programs = map[string]func() int{
	"bed-job": cli.Main,
	"writer":  writerMain,
}

func TestMain(m *testing.M) {
	// Connections are lost here all the time.
	_ = mysql.SetLogger(new(mysql.NopLogger))
	name := os.Getenv(beProgram)
	if name == "" {
		// gorm's cache of prepared statements cannot be closed.
		goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("gorm.io/gorm/internal/lru.NewLRU[...].func1"))
		return
	}
	program, ok := programs[name]
	if !ok {
		fmt.Fprintf(os.Stderr, "%s: there is no program %q\n", beProgram, name)
		os.Exit(2)
	}
	os.Exit(program())
}

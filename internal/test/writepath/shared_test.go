package writepath

// sharedFiles are the files of an INSERT that mention a feature, by the guarantee. The list may only
// become shorter.
var sharedFiles = map[string][]string{
	"at-least-once": inTheLog,
	"once":          append([]string{"internal/attempt/receipt.go", "internal/target/receipts.go"}, inTheLog...),
}

// inTheLog define what an entry is, with the fields and columns of the features.
var inTheLog = []string{
	"internal/entry/unit.go", "internal/removal/queue.go", "txlog/columns.go", "txlog/sql_write.go", "txlog/sqlstorage.go",
}

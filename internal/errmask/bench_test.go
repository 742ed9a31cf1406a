package errmask

import "testing"

func BenchmarkMask(b *testing.B) {
	for b.Loop() {
		Mask("Error 1205 (HY000): Lock wait timeout exceeded; try restarting transaction", "1", "ann@example.com")
	}
}
func BenchmarkMaskQuote(b *testing.B) {
	for b.Loop() {
		Mask("Error 1062 (23000): Duplicate entry 'ann@example.com' for key 'orders.email'", "1", "ann@example.com")
	}
}

package doctor

import "testing"

func TestTheLogIsNoCopyOfItself(t *testing.T) {
	t.Parallel()
	log := &patient{server: "mysql a:3306", place: "bed", isLog: true}
	for server, same := range map[string]bool{"mysql a:3306": true, "": true, "mysql b:3306": false} {
		p := &patient{x: &examination{log: log}, server: server}
		if p.samePlace("bed") != same || p.samePlace("copy") {
			t.Errorf("on the server %q: %v", server, p.samePlace("bed"))
		}
	}
}

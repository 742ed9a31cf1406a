package txlog

import (
	"errors"
	"strconv"
	"strings"
	"sync"
	"time"
)

// A time is kept as its wall clock, its offset and the name of its location:
//
//	"2024-05-01T10:00:00.5+02:00 Europe/Berlin"
//	"2024-05-01T10:00:00Z"                       UTC
//	"2024-05-01T10:00:00+02:00"                  a zone without a name
//	"@-99999999999.000000001Z"                   a year that has not four digits
const wallClock = "2006-01-02T15:04:05.999999999"

var errTime = errors.New("is no time")

func appendTime(b []byte, t time.Time) []byte {
	from := len(b)
	b = append(b, '"')
	if y := t.Year(); y >= 0 && y <= 9999 {
		b = t.AppendFormat(b, wallClock)
	} else {
		b = append(b, '@')
		b = strconv.AppendInt(b, t.Unix(), 10)
		nanos := strconv.Itoa(t.Nanosecond())
		b = append(b, "."+strings.Repeat("0", 9-len(nanos))+nanos...)
	}
	if t.Location() == time.UTC {
		return append(b, 'Z', '"')
	}
	_, offset := t.Zone()
	b = appendOffset(b, offset)
	name := t.Location().String()
	if name == "" {
		return append(b, '"')
	}
	// The name of a fixed zone is the application's: it may hold any bytes.
	text := string(b[from+1:]) + " " + name
	return appendText(b[:from], text)
}

func appendOffset(b []byte, offset int) []byte {
	sign := byte('+')
	if offset < 0 {
		sign, offset = '-', -offset
	}
	two := func(b []byte, n int) []byte {
		if n < 10 {
			b = append(b, '0')
		}
		return strconv.AppendInt(b, int64(n), 10)
	}
	b = two(append(b, sign), offset/3600)
	b = two(append(b, ':'), offset/60%60)
	if s := offset % 60; s != 0 {
		b = two(append(b, ':'), s)
	}
	return b
}

func parseTime(s string) (time.Time, error) {
	text, name, named := strings.Cut(s, " ")
	wall, offset, utc, err := cutOffset(text)
	if err != nil {
		return time.Time{}, err
	}
	var t time.Time
	if unix, ok := strings.CutPrefix(wall, "@"); ok {
		if t, err = parseUnix(unix); err != nil {
			return time.Time{}, err
		}
	} else {
		if t, err = time.Parse(wallClock, wall); err != nil {
			return time.Time{}, errTime
		}
		t = t.Add(-time.Duration(offset) * time.Second)
	}
	if utc {
		return t.UTC(), nil
	}
	return t.In(location(t, name, named, offset)), nil
}

func parseUnix(s string) (time.Time, error) {
	secs, nanos, _ := strings.Cut(s, ".")
	sec, err := strconv.ParseInt(secs, 10, 64)
	if err != nil {
		return time.Time{}, errTime
	}
	nsec, err := strconv.ParseUint(nanos, 10, 30)
	if err != nil || len(nanos) != 9 {
		return time.Time{}, errTime
	}
	return time.Unix(sec, int64(nsec)), nil
}

// cutOffset splits the offset off the end of s.
func cutOffset(s string) (rest string, offset int, utc bool, err error) {
	if rest, utc = strings.CutSuffix(s, "Z"); utc {
		return rest, 0, true, nil
	}
	// A sign within the date, or that of a negative @time, stands before it.
	i := strings.LastIndexAny(s, "+-")
	if i < 1 {
		return "", 0, false, errTime
	}
	parts := strings.Split(s[i+1:], ":")
	if len(parts) < 2 || len(parts) > 3 {
		return "", 0, false, errTime
	}
	for n, unit := 0, 3600; n < len(parts); n, unit = n+1, unit/60 {
		v, err := strconv.ParseUint(parts[n], 10, 31)
		if err != nil {
			return "", 0, false, errTime
		}
		offset += int(v) * unit
	}
	if s[i] == '-' {
		offset = -offset
	}
	return s[:i], offset, false, nil
}

// location finds the location called name, if it gives t the offset with which t
// was written: the rules of a zone may have changed since, or differ on this
// machine.
func location(t time.Time, name string, named bool, offset int) *time.Location {
	if named {
		if loc := loadLocation(name); loc != nil {
			if _, o := t.In(loc).Zone(); o == offset {
				return loc
			}
		}
	}
	return time.FixedZone(name, offset)
}

// locations keeps the zones of the system's database that were asked for, because
// loading one reads a file. Names that do not exist are not kept.
var locations sync.Map

func loadLocation(name string) *time.Location {
	if loc, ok := locations.Load(name); ok {
		return loc.(*time.Location)
	}
	loc, err := time.LoadLocation(name)
	if err != nil || name == "" {
		return nil
	}
	locations.Store(name, loc)
	return loc
}

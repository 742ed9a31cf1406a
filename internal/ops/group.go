package ops

import (
	"context"
	"database/sql"
	"encoding/json"
	"time"

	"github.com/bedsql/bed/internal/entry"
)

// GroupState is the role of an entry in a compensable group, a soft transaction; empty outside of
// groups.
type GroupState string

// The values of GroupState.
const (
	// GroupPart is a write of the group.
	GroupPart GroupState = "part"
	// GroupRecorded is the compensation of a group that is not being compensated.
	GroupRecorded GroupState = "recorded"
	// GroupCompensating is the running compensation of a group.
	GroupCompensating GroupState = "compensating"
	// GroupHalfCompensated is a compensation waiting for an operator.
	GroupHalfCompensated GroupState = "halfCompensated"
)

// GroupTexts say it in words.
var GroupTexts = map[GroupState]string{
	GroupPart:            "part of a compensable group",
	GroupRecorded:        "compensation of its group, not started",
	GroupCompensating:    "its group is being compensated",
	GroupHalfCompensated: "half compensated",
}

// GroupOf returns the role of a unit in its group.
func GroupOf(u *entry.Unit) GroupState {
	switch {
	case u.Group():
		return GroupPart
	case u.HalfCompensated():
		return GroupHalfCompensated
	case u.Compensating():
		return GroupCompensating
	case u.Undo != nil:
		return GroupRecorded
	}
	return ""
}

// contended counts the contended entries among up to most entries that are not parked.
func (b *overviewer) contended(ctx context.Context) error {
	return b.each(ctx, func(rows *sql.Rows) error {
		var created int64
		var settings string
		if err := rows.Scan(&created, &settings); err != nil {
			return err
		}
		var has struct {
			From int64 `json:"contended_from"`
		}
		if json.Unmarshal([]byte(settings), &has) == nil && has.From > 0 {
			b.out.Contended++
			if since := time.UnixMilli(created + has.From).UTC(); b.out.ContendedSince == nil || since.Before(*b.out.ContendedSince) {
				b.out.ContendedSince = &since
			}
		}
		return nil
	}, `SELECT creation_time, settings FROM (SELECT creation_time, settings FROM transaction_log WHERE parked = 0 AND `+b.headRow()+
		` LIMIT ?) AS t WHERE settings LIKE '%,"contended_from":%'`, b.most)
}

// halfCompensated counts half-compensated groups among up to most parked entries.
func (b *overviewer) halfCompensated(ctx context.Context) error {
	for _, d := range b.byName {
		if d.Parked > 0 {
			return b.row(ctx, []any{&b.out.HalfCompensated}, `SELECT COUNT(*) FROM (SELECT id, transaction_id, receipt, settings FROM transaction_log
  WHERE parked = 1 AND `+b.headRow()+` LIMIT ?) AS t WHERE receipt = id AND transaction_id = id AND settings LIKE '%,"undo":{%'`, b.most)
		}
	}
	return nil
}

// Drives River with the commands of ../README.md: `queue-river COMMAND …`.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

const (
	payloadBytes = 200
	pause        = 5 * time.Millisecond
	// Events per transaction when nothing but the number of events matters.
	bulk = 1000
	// Events per transaction of a publisher that keeps to a rate.
	small = 10

	unsettled = `select count(*) from river_job
		where state in ('available', 'running', 'retryable', 'scheduled', 'pending')`
)

type event struct {
	Number int    `json:"number"`
	Text   string `json:"text"`
}

func (event) Kind() string { return "event" }

// tally is what the handler leaves behind: how many events it saw, and when if that is asked for.
type tally struct {
	river.WorkerDefaults[event]
	mutex     sync.Mutex
	handled   int
	withTimes bool
	times     strings.Builder
}

func (t *tally) Work(_ context.Context, job *river.Job[event]) error {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	t.handled++
	if t.withTimes {
		fmt.Fprintf(&t.times, "%d %d\n", job.Args.Number, time.Now().UnixMicro())
	}
	return nil
}

func (t *tally) seen() int {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	return t.handled
}

func main() {
	if err := run(context.Background(), os.Args[1], os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, command string, rest []string) error {
	config, err := pgxpool.ParseConfig(os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	config.MaxConns = 10
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return err
	}
	defer pool.Close()
	var numbers [2]int
	for index := range min(len(rest), len(numbers)) {
		// What is no number is a file name.
		numbers[index], _ = strconv.Atoi(rest[index])
	}
	switch command {
	case "prepare":
		return prepare(ctx, pool)
	case "publish":
		return publish(ctx, pool, numbers[0])
	case "publish-at":
		return publishAt(ctx, pool, numbers[0], numbers[1], rest[2])
	case "drain":
		file := ""
		if len(rest) > 1 {
			file = rest[1]
		}
		return drain(ctx, pool, numbers[0], file)
	}
	return fmt.Errorf("no command %s", command)
}

func prepare(ctx context.Context, pool *pgxpool.Pool) error {
	migrator, err := rivermigrate.New(riverpgxv5.New(pool), nil)
	if err != nil {
		return err
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return err
	}
	version := ""
	if build, ok := debug.ReadBuildInfo(); ok {
		for _, module := range build.Deps {
			if module.Path == "github.com/riverqueue/river" {
				version = strings.TrimPrefix(module.Version, "v")
			}
		}
	}
	return answer(map[string]any{"is": "River " + version + ": 2,000 workers, cooldown 2 ms"})
}

func publish(ctx context.Context, pool *pgxpool.Pool, count int) error {
	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{Logger: logger()})
	if err != nil {
		return err
	}
	began := time.Now()
	for first := 0; first < count; first += bulk {
		if err := add(ctx, client, first, min(bulk, count-first)); err != nil {
			return err
		}
	}
	return answer(map[string]any{"began_us": began.UnixMicro(), "ended_us": time.Now().UnixMicro()})
}

// publishAt keeps to the rate by the clock: a late transaction does not make the next one later.
func publishAt(ctx context.Context, pool *pgxpool.Pool, rate, seconds int, file string) error {
	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{Logger: logger()})
	if err != nil {
		return err
	}
	var lines strings.Builder
	began := time.Now()
	for first := 0; first < rate*seconds; first += small {
		due := began.Add(time.Duration(first) * time.Second / time.Duration(rate))
		time.Sleep(time.Until(due))
		if err := add(ctx, client, first, small); err != nil {
			return err
		}
		committed := time.Now().UnixMicro()
		for index := range small {
			fmt.Fprintf(&lines, "%d %d\n", first+index, committed)
		}
	}
	ended := time.Now()
	if err := os.WriteFile(file, []byte(lines.String()), 0o644); err != nil {
		return err
	}
	return answer(map[string]any{"began_us": began.UnixMicro(), "ended_us": ended.UnixMicro()})
}

// add inserts by COPY, the fastest way River has.
func add(ctx context.Context, client *river.Client[pgx.Tx], first, count int) error {
	jobs := make([]river.InsertManyParams, 0, count)
	for number := first; number < first+count; number++ {
		frame := len(fmt.Sprintf(`{"number":%d,"text":""}`, number))
		text := strings.Repeat("x", payloadBytes-frame)
		jobs = append(jobs, river.InsertManyParams{Args: event{number, text}})
	}
	_, err := client.InsertManyFast(ctx, jobs)
	return err
}

func drain(ctx context.Context, pool *pgxpool.Pool, count int, file string) error {
	tally := &tally{withTimes: file != ""}
	workers := river.NewWorkers()
	river.AddWorker(workers, tally)
	// What `river bench` measures with.
	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{
		Logger:            logger(),
		Workers:           workers,
		Queues:            map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 2000}},
		FetchCooldown:     2 * time.Millisecond,
		FetchPollInterval: 20 * time.Millisecond,
	})
	if err != nil {
		return err
	}
	began := time.Now()
	if err := client.Start(ctx); err != nil {
		return err
	}
	if err := answer(map[string]any{"ready": true}); err != nil {
		return err
	}
	for tally.seen() < count {
		time.Sleep(pause)
	}
	// Handled is not settled: what the batch completer still has in memory would run again.
	for left := 1; left > 0; time.Sleep(pause) {
		if err := pool.QueryRow(ctx, unsettled).Scan(&left); err != nil {
			return err
		}
	}
	ended := time.Now()
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		return err
	}
	if file != "" {
		if err := os.WriteFile(file, []byte(tally.times.String()), 0o644); err != nil {
			return err
		}
	}
	if err := answer(map[string]any{
		"handled":  tally.seen(),
		"began_us": began.UnixMicro(),
		"ended_us": ended.UnixMicro(),
		"cpu_s":    time.Duration(used.Utime.Nano() + used.Stime.Nano()).Seconds(),
		"rss_mb":   float64(used.Maxrss) / 1024,
	}); err != nil {
		return err
	}
	stopping, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	return client.Stop(stopping)
}

func logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
}

func answer(value map[string]any) error {
	text, err := json.Marshal(value)
	if err == nil {
		_, err = fmt.Println(string(text))
	}
	return err
}

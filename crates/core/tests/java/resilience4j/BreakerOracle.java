import io.github.resilience4j.circuitbreaker.CircuitBreaker;
import io.github.resilience4j.circuitbreaker.CircuitBreakerConfig;
import io.github.resilience4j.circuitbreaker.CircuitBreakerConfig.SlidingWindowType;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.time.Clock;
import java.time.Duration;
import java.time.Instant;
import java.time.ZoneId;
import java.time.ZoneOffset;
import java.util.concurrent.TimeUnit;

/** Plays call sequences from standard input on a Resilience4j breaker and prints each state. */
public class BreakerOracle {
    static long nowMs;

    static final Clock CLOCK = new Clock() {
        @Override public ZoneId getZone() { return ZoneOffset.UTC; }
        @Override public Clock withZone(ZoneId zone) { return this; }
        @Override public Instant instant() { return Instant.ofEpochMilli(nowMs); }
    };

    public static void main(String[] args) throws Exception {
        var in = new BufferedReader(new InputStreamReader(System.in));
        var out = new PrintStream(System.out, false);
        CircuitBreaker breaker = null;
        long waitMs = 0;
        long openedAt = 0;
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] w = line.split(" ");
            CircuitBreaker.State before = breaker == null ? null : breaker.getState();
            String answer = "-";
            switch (w[0]) {
                case "rule" -> {
                    nowMs = 0;
                    waitMs = Long.parseLong(w[6]);
                    breaker = CircuitBreaker.of("b", CircuitBreakerConfig.custom()
                        .slidingWindowType(SlidingWindowType.COUNT_BASED)
                        .slidingWindowSize(Integer.parseInt(w[1]))
                        .minimumNumberOfCalls(Integer.parseInt(w[2]))
                        .failureRateThreshold(Float.parseFloat(w[3]))
                        .slowCallRateThreshold(Float.parseFloat(w[4]))
                        .slowCallDurationThreshold(Duration.ofMillis(Long.parseLong(w[5])))
                        .waitDurationInOpenState(Duration.ofMillis(waitMs))
                        .permittedNumberOfCallsInHalfOpenState(Integer.parseInt(w[7]))
                        .clock(CLOCK).build());
                }
                case "acquire" -> answer = breaker.tryAcquirePermission() ? "yes" : "no";
                case "success" -> breaker.onSuccess(Long.parseLong(w[1]), TimeUnit.MILLISECONDS);
                case "failure" -> breaker.onError(
                    Long.parseLong(w[1]), TimeUnit.MILLISECONDS, new RuntimeException());
                case "release" -> breaker.releasePermission();
                case "wait" -> {
                    nowMs += Long.parseLong(w[1]);
                    // The step of its timer when the automatic transition is switched on.
                    if (before == CircuitBreaker.State.OPEN && nowMs - openedAt >= waitMs) {
                        breaker.transitionToHalfOpenState();
                    }
                }
                default -> throw new IllegalArgumentException(line);
            }
            CircuitBreaker.State after = breaker.getState();
            if (after == CircuitBreaker.State.OPEN && before != after) openedAt = nowMs;
            out.println(answer + " " + after);
        }
        out.flush();
    }
}

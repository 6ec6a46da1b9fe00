import com.fasterxml.jackson.databind.DeserializationFeature;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.SerializationFeature;
import com.fasterxml.jackson.datatype.jsr310.JavaTimeModule;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.time.Instant;
import java.util.Arrays;
import java.util.stream.Collectors;

/** Reads and writes spill files with Jackson, set up as the documented client sets it up. */
public class SpillPeer {
    public static class EventLogEntry {
        public String applicationId;
        public String correlationId;
        public String processName;
        public String processStatus;
        public String step;
        public String details;
        public String targetSystem;
        public String originatingSystem;
        public Instant timestamp;
        public String userId;

        String[] fields() {
            return new String[] {applicationId, correlationId, processName, processStatus, step, details,
                targetSystem, originatingSystem, timestamp == null ? null : timestamp.toString(), userId};
        }
    }

    static final ObjectMapper MAPPER = new ObjectMapper()
        .registerModule(new JavaTimeModule())
        .disable(SerializationFeature.WRITE_DATES_AS_TIMESTAMPS)
        .disable(DeserializationFeature.FAIL_ON_UNKNOWN_PROPERTIES);

    /** `read FILE` or `write FILE COUNT`. */
    public static void main(String[] arguments) throws Exception {
        Path file = Path.of(arguments[1]);
        if (arguments[0].equals("read")) {
            read(file);
        } else {
            write(file, Integer.parseInt(arguments[2]));
        }
    }

    /** Prints the fields with separators that no text of an event holds. */
    static void read(Path file) throws Exception {
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        for (String line : Files.readAllLines(file, StandardCharsets.UTF_8)) {
            EventLogEntry entry = MAPPER.readValue(line, EventLogEntry.class);
            out.print(Arrays.stream(entry.fields()).map(String::valueOf).collect(Collectors.joining("\u001f")));
            out.print('\u001e');
        }
        out.flush();
    }

    static void write(Path file, int count) throws Exception {
        String[] texts = {"plain", "Größe \"L\" \\ 7", "猫のホテル", "🐕 at night\nsecond line\ttab", "nul \u0000 end"};
        for (int i = 0; i < count; i++) {
            EventLogEntry entry = new EventLogEntry();
            entry.applicationId = "pet-resort-api";
            entry.correlationId = "java-" + i / 3;
            entry.processName = "CreateBooking";
            entry.processStatus = i % 7 == 6 ? "ERROR" : "STEP";
            entry.step = i % 7 == 6 ? null : "Step" + i;
            // Every fifth text stands there several times, as in life.
            entry.details = texts[i % texts.length] + (i % 5 == 0 ? "" : " " + i);
            entry.targetSystem = "PET_RESORT";
            entry.originatingSystem = "PET_RESORT";
            entry.timestamp = Instant.parse("2026-06-01T10:15:30.123Z").plusNanos(i * 1_000_003L);
            entry.userId = "system";
            String line = MAPPER.writeValueAsString(entry) + "\n";
            Files.write(file, line.getBytes(StandardCharsets.UTF_8), StandardOpenOption.CREATE, StandardOpenOption.APPEND);
        }
    }
}

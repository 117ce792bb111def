import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import java.util.TimeZone;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.connect.data.Schema;
import org.apache.kafka.connect.data.SchemaAndValue;
import org.apache.kafka.connect.data.Values;
import org.apache.kafka.connect.json.JsonConverter;
import org.apache.kafka.connect.sink.SinkRecord;
import org.apache.kafka.connect.transforms.Transformation;

/**
 * Passes each line of standard input to Kafka Connect's classes and prints one line with the result. Tabs separate the
 * columns. Each line contains one of the following requests; the columns of the result follow the arrow:
 *
 * json ENVELOPE                       -> the value as JSON with schemas, as JSON without schemas, as JSON with schemas
 *                                        and numeric decimals, and its toString()
 * text STRING                         -> the schema that Values.parseString infers, and the value as a string
 * smt CLASS KEY=VALUE;... on|off JSON -> topic, value and key of the transformed record; on|off is schemas.enable
 *
 * The result is "error" if Kafka's class throws an exception, and "dropped" if the transform drops the record.
 */
public class ConnectOracle {
    private static final JsonConverter ON = converter("schemas.enable", "true");
    private static final JsonConverter OFF = converter("schemas.enable", "false");
    private static final JsonConverter NUMERIC = converter("decimal.format", "NUMERIC");

    public static void main(String[] arguments) throws Exception {
        TimeZone.setDefault(TimeZone.getTimeZone("UTC"));
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String result;
            try {
                result = evaluate(line.split("\t", -1));
            } catch (Exception error) {
                result = "error";
            }
            out.print(result + "\n");
        }
        out.flush();
    }

    private static String evaluate(String[] columns) throws Exception {
        switch (columns[0]) {
            case "json": {
                SchemaAndValue data = ON.toConnectData("t", utf8(columns[1]));
                return String.join("\t", write(ON, data.schema(), data.value()),
                    write(OFF, data.schema(), data.value()), write(NUMERIC, data.schema(), data.value()),
                    String.valueOf(data.value()));
            }
            case "text": {
                SchemaAndValue data = Values.parseString(columns[1]);
                if (data == null) return "null\tnull";
                return name(data.schema()) + "\t" + Values.convertToString(data.schema(), data.value());
            }
            default:
                return transform(columns);
        }
    }

    @SuppressWarnings("unchecked")
    private static String transform(String[] columns) throws Exception {
        Map<String, String> settings = new HashMap<>();
        for (String pair : columns[2].split(";")) {
            if (!pair.isEmpty()) settings.put(pair.substring(0, pair.indexOf('=')), pair.substring(pair.indexOf('=') + 1));
        }
        Transformation<SinkRecord> transformation = (Transformation<SinkRecord>) Class
            .forName("org.apache.kafka.connect.transforms." + columns[1]).getDeclaredConstructor().newInstance();
        transformation.configure(settings);
        JsonConverter converter = columns[3].equals("on") ? ON : OFF;
        SchemaAndValue data = converter.toConnectData("t", utf8(columns[4]));
        SinkRecord record = transformation.apply(new SinkRecord("topic-1", 2, null, null, data.schema(), data.value(), 7,
            1700000000123L, TimestampType.CREATE_TIME));
        if (record == null) return "dropped";
        return String.join("\t", record.topic(), write(converter, record.valueSchema(), record.value()),
            write(converter, record.keySchema(), record.key()));
    }

    private static JsonConverter converter(String key, String value) {
        JsonConverter converter = new JsonConverter();
        converter.configure(Map.of(key, value), false);
        return converter;
    }

    private static String write(JsonConverter converter, Schema schema, Object value) {
        byte[] data = converter.fromConnectData("t", schema, value);
        return data == null ? "-" : new String(data, StandardCharsets.UTF_8);
    }

    private static byte[] utf8(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    private static String name(Schema schema) {
        if (schema == null) return "null";
        String name = schema.name() != null ? schema.name() : schema.type().toString();
        if (schema.type() == Schema.Type.ARRAY) return name + "<" + name(schema.valueSchema()) + ">";
        if (schema.type() == Schema.Type.MAP) {
            return name + "<" + name(schema.keySchema()) + "," + name(schema.valueSchema()) + ">";
        }
        return name;
    }
}

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.StreamReadConstraints;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.math.BigDecimal;
import java.math.BigInteger;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TimeZone;
import org.apache.kafka.common.config.ConfigException;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.connect.connector.ConnectRecord;
import org.apache.kafka.connect.data.Field;
import org.apache.kafka.connect.data.Schema;
import org.apache.kafka.connect.data.SchemaAndValue;
import org.apache.kafka.connect.data.SchemaBuilder;
import org.apache.kafka.connect.data.Struct;
import org.apache.kafka.connect.errors.ConnectException;
import org.apache.kafka.connect.header.ConnectHeaders;
import org.apache.kafka.connect.header.Header;
import org.apache.kafka.connect.header.Headers;
import org.apache.kafka.connect.sink.SinkRecord;
import org.apache.kafka.connect.source.SourceRecord;
import org.apache.kafka.connect.storage.Converter;
import org.apache.kafka.connect.storage.HeaderConverter;
import org.apache.kafka.connect.transforms.Transformation;
import org.apache.kafka.connect.transforms.predicates.Predicate;

/**
 * Passes records, data and bytes to classes of Kafka Connect and prints what they return.
 *
 * Each line of standard input is a JSON object: "kind" (transform, predicate, converter or header), "class", "config",
 * "schemas", and "cases". Each line of standard output is a JSON object: "configure" (the kind of the exception that
 * configure throws, or null), "schemas", and "results" with one result for each case. A schema is referenced by its index
 * in "schemas", or by null. tests/support/connect_values.py describes the form of schemas and values.
 *
 * Cases and results:
 *
 * transform            a record -> a record, or null if the record is dropped
 * predicate            a record -> true or false
 * converter, header    ["from", schema, value] -> bytes;  ["to", bytes] -> [schema, value]
 *
 * Bytes are hexadecimal strings or null. The result is {"error": KIND} if the class throws an exception. The kind is
 * "config" (ConfigException), "connect" (ConnectException and its subclasses) or the name of another class. A record is an
 * array: is it a source record, topic, partition, key schema, key, value schema, value, timestamp, headers; a header is
 * an array: key, schema, value.
 */
public class ConnectOracle {
    private static final HexFormat HEX = HexFormat.of();

    public static void main(String[] arguments) throws Exception {
        TimeZone.setDefault(TimeZone.getTimeZone("UTC"));
        StreamReadConstraints limits = StreamReadConstraints.builder().maxNestingDepth(1_000_000)
            .maxStringLength(Integer.MAX_VALUE).maxNumberLength(Integer.MAX_VALUE).build();
        ObjectMapper mapper = new ObjectMapper(JsonFactory.builder().streamReadConstraints(limits).build());
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.US_ASCII);
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            out.print(new Request(mapper.readTree(line)).run() + "\n");
            out.flush();
        }
    }

    private interface Evaluation {
        void evaluate(JsonNode input, StringBuilder out);
    }

    private static class Request {
        private final JsonNode request;
        private final Map<String, String> config = new LinkedHashMap<>();
        private final List<Schema> given = new ArrayList<>();
        private final Map<Schema, Integer> returned = new LinkedHashMap<>();

        Request(JsonNode request) {
            this.request = request;
            request.get("config").fields().forEachRemaining(each -> config.put(each.getKey(), text(each.getValue())));
            request.get("schemas").forEach(each -> given.add(schema(each)));
        }

        String run() throws Exception {
            Evaluation evaluation;
            try {
                evaluation = configured();
            } catch (Throwable error) {
                return "{\"configure\":" + quoted(kind(error)) + ",\"schemas\":[],\"results\":[]}";
            }
            StringBuilder results = new StringBuilder();
            for (JsonNode input : request.get("cases")) {
                if (results.length() > 0) results.append(',');
                int start = results.length();
                try {
                    evaluation.evaluate(input, results);
                } catch (BadInput error) {
                    throw error;
                } catch (Throwable error) {
                    results.setLength(start);
                    results.append("{\"error\":").append(quoted(kind(error))).append('}');
                }
            }
            StringBuilder schemas = new StringBuilder();
            for (Schema each : returned.keySet()) {
                if (schemas.length() > 0) schemas.append(',');
                writeSchema(each, schemas);
            }
            return "{\"configure\":null,\"schemas\":[" + schemas + "],\"results\":[" + results + "]}";
        }

        @SuppressWarnings({"rawtypes", "unchecked"})
        private Evaluation configured() throws Exception {
            Object plugin = Class.forName(request.get("class").asText()).getDeclaredConstructor().newInstance();
            switch (request.get("kind").asText()) {
                case "transform": {
                    Transformation transform = (Transformation) plugin;
                    transform.configure(config);
                    return (input, out) -> writeRecord(transform.apply(record(input)), out);
                }
                case "predicate": {
                    Predicate predicate = (Predicate) plugin;
                    predicate.configure(config);
                    return (input, out) -> out.append(predicate.test(record(input)));
                }
                case "converter": {
                    Converter converter = (Converter) plugin;
                    converter.configure(config, request.get("key").asBoolean());
                    return (input, out) -> {
                        if (input.get(0).asText().equals("from")) {
                            Schema schema = given(input.get(1));
                            writeHex(converter.fromConnectData("t", schema, value(schema, input.get(2))), out);
                        } else {
                            writeData(converter.toConnectData("t", hex(input.get(1))), out);
                        }
                    };
                }
                default: {
                    HeaderConverter converter = (HeaderConverter) plugin;
                    converter.configure(config);
                    return (input, out) -> {
                        if (input.get(0).asText().equals("from")) {
                            Schema schema = given(input.get(1));
                            writeHex(converter.fromConnectHeader("t", "h", schema, value(schema, input.get(2))), out);
                        } else {
                            writeData(converter.toConnectHeader("t", "h", hex(input.get(1))), out);
                        }
                    };
                }
            }
        }

        private Schema given(JsonNode index) {
            return index.isNull() ? null : given.get(index.asInt());
        }

        @SuppressWarnings("rawtypes")
        private ConnectRecord record(JsonNode node) {
            try {
                Schema keySchema = given(node.get(3));
                Schema valueSchema = given(node.get(5));
                Object key = value(keySchema, node.get(4));
                Object value = value(valueSchema, node.get(6));
                Integer partition = node.get(2).isNull() ? null : node.get(2).asInt();
                Long timestamp = node.get(7).isNull() ? null : node.get(7).asLong();
                Headers headers = new ConnectHeaders();
                for (JsonNode each : node.get(8)) {
                    Schema schema = given(each.get(1));
                    headers.add(text(each.get(0)), new SchemaAndValue(schema, value(schema, each.get(2))));
                }
                if (node.get(0).asBoolean()) {
                    return new SourceRecord(Map.of("p", 1), Map.of("o", 1), text(node.get(1)), partition, keySchema, key,
                        valueSchema, value, timestamp, headers);
                }
                return new SinkRecord(text(node.get(1)), partition, keySchema, key, valueSchema, value, 7, timestamp,
                    TimestampType.CREATE_TIME, headers);
            } catch (RuntimeException error) {
                throw new BadInput(node, error);
            }
        }

        private void writeRecord(ConnectRecord<?> record, StringBuilder out) {
            if (record == null) {
                out.append("null");
                return;
            }
            out.append('[').append(record instanceof SourceRecord).append(',').append(quoted(record.topic()));
            out.append(',').append(record.kafkaPartition()).append(',');
            writeData(new SchemaAndValue(record.keySchema(), record.key()), out);
            out.append(',');
            writeData(new SchemaAndValue(record.valueSchema(), record.value()), out);
            out.append(',').append(record.timestamp()).append(",[");
            String comma = "";
            for (Header header : record.headers()) {
                out.append(comma).append('[').append(quoted(header.key())).append(',');
                writeData(new SchemaAndValue(header.schema(), header.value()), out);
                out.append(']');
                comma = ",";
            }
            out.append("]]");
        }

        private void writeData(SchemaAndValue data, StringBuilder out) {
            if (data == null) { // SimpleHeaderConverter returns null for the text null
                out.append("[null,null]");
                return;
            }
            out.append('[');
            if (data.schema() == null) {
                out.append("null");
            } else {
                Integer index = returned.putIfAbsent(data.schema(), returned.size());
                out.append(index == null ? returned.size() - 1 : index);
            }
            out.append(',');
            writeValue(data.value(), out);
            out.append(']');
        }
    }

    private static String kind(Throwable error) {
        if (error instanceof ConfigException) return "config";
        return error instanceof ConnectException ? "connect" : error.getClass().getName();
    }

    private static class BadInput extends RuntimeException {
        BadInput(JsonNode input, Throwable cause) {
            super(input.toString(), cause);
        }
    }

    private static Schema schema(JsonNode node) {
        try {
            SchemaBuilder builder = builder(node);
            JsonNode written = node.get("default");
            if (written == null) return builder.build();
            return builder.defaultValue(value(builder, written)).build(); // as JsonConverter does
        } catch (RuntimeException error) {
            throw new BadInput(node, error);
        }
    }

    private static SchemaBuilder builder(JsonNode node) {
        Schema.Type type = Schema.Type.valueOf(node.get("type").asText().toUpperCase());
        SchemaBuilder builder = type == Schema.Type.ARRAY ? SchemaBuilder.array(schema(node.get("values")))
            : type == Schema.Type.MAP ? SchemaBuilder.map(schema(node.get("keys")), schema(node.get("values")))
            : SchemaBuilder.type(type);
        if (node.has("optional")) builder.optional();
        if (node.has("name")) builder.name(node.get("name").asText());
        if (node.has("version")) builder.version(node.get("version").asInt());
        if (node.has("doc")) builder.doc(node.get("doc").asText());
        if (node.has("parameters")) {
            node.get("parameters").fields().forEachRemaining(each -> builder.parameter(each.getKey(), text(each.getValue())));
        }
        if (node.has("fields")) node.get("fields").forEach(each -> builder.field(text(each.get(0)), schema(each.get(1))));
        return builder;
    }

    private static Object value(Schema schema, JsonNode node) {
        if (node.isNull()) return null;
        JsonNode content = node.get(1);
        switch (node.get(0).asText()) {
            case "boolean": return content.asBoolean();
            case "int8": return (byte) content.asInt();
            case "int16": return (short) content.asInt();
            case "int32": return content.asInt();
            case "int64": return content.asLong();
            case "float32": return Float.intBitsToFloat(content.asInt());
            case "float64": return Double.longBitsToDouble(content.asLong());
            case "string": return content.asText();
            case "bytes": return hex(content);
            case "decimal": return new BigDecimal(new BigInteger(content.asText()), node.get(2).asInt());
            case "date": return new java.util.Date(content.asLong());
            case "array": {
                List<Object> list = new ArrayList<>();
                content.forEach(each -> list.add(value(schema == null ? null : schema.valueSchema(), each)));
                return list;
            }
            case "map": {
                Map<Object, Object> map = new HashMap<>(); // as JsonConverter does
                content.forEach(each -> map.put(value(schema == null ? null : schema.keySchema(), each.get(0)),
                    value(schema == null ? null : schema.valueSchema(), each.get(1))));
                return map;
            }
            case "struct": {
                Struct struct = new Struct(schema);
                for (Field field : schema.fields()) {
                    Object value = value(field.schema(), content.get(field.index()));
                    if (value != null) struct.put(field, value);
                }
                struct.validate();
                return struct;
            }
            default: throw new IllegalArgumentException(node.toString());
        }
    }

    private static void writeSchema(Schema schema, StringBuilder out) {
        if (schema == null) {
            out.append("null"); // the schema of the elements of an array that Values.parseString creates
            return;
        }
        out.append("{\"type\":").append(quoted(schema.type().getName()));
        if (schema.isOptional()) out.append(",\"optional\":true");
        if (schema.name() != null) out.append(",\"name\":").append(quoted(schema.name()));
        if (schema.version() != null) out.append(",\"version\":").append(schema.version());
        if (schema.doc() != null) out.append(",\"doc\":").append(quoted(schema.doc()));
        if (schema.parameters() != null && !schema.parameters().isEmpty()) {
            out.append(",\"parameters\":{");
            String comma = "";
            for (Map.Entry<String, String> each : schema.parameters().entrySet()) {
                out.append(comma).append(quoted(each.getKey())).append(':').append(quoted(each.getValue()));
                comma = ",";
            }
            out.append('}');
        }
        if (schema.type() == Schema.Type.MAP) {
            out.append(",\"keys\":");
            writeSchema(schema.keySchema(), out);
        }
        if (schema.type() == Schema.Type.MAP || schema.type() == Schema.Type.ARRAY) {
            out.append(",\"values\":");
            writeSchema(schema.valueSchema(), out);
        }
        if (schema.type() == Schema.Type.STRUCT) {
            out.append(",\"fields\":[");
            String comma = "";
            for (Field field : schema.fields()) {
                out.append(comma).append('[').append(quoted(field.name())).append(',');
                writeSchema(field.schema(), out);
                out.append(']');
                comma = ",";
            }
            out.append(']');
        }
        if (schema.defaultValue() != null) {
            out.append(",\"default\":");
            writeValue(schema.defaultValue(), out);
        }
        out.append('}');
    }

    private static void writeValue(Object value, StringBuilder out) {
        if (value == null) out.append("null");
        else if (value instanceof Boolean) write("boolean", value.toString(), out);
        else if (value instanceof Byte) write("int8", value.toString(), out);
        else if (value instanceof Short) write("int16", value.toString(), out);
        else if (value instanceof Integer) write("int32", value.toString(), out);
        else if (value instanceof Long) write("int64", value.toString(), out);
        else if (value instanceof Float) write("float32", "" + Float.floatToIntBits((Float) value), out);
        else if (value instanceof Double) write("float64", "" + Double.doubleToLongBits((Double) value), out);
        else if (value instanceof String) write("string", quoted((String) value), out);
        else if (value instanceof byte[]) write("bytes", quoted(HEX.formatHex((byte[]) value)), out);
        else if (value instanceof ByteBuffer) {
            ByteBuffer buffer = ((ByteBuffer) value).duplicate();
            byte[] bytes = new byte[buffer.remaining()];
            buffer.get(bytes);
            write("bytes", quoted(HEX.formatHex(bytes)), out);
        } else if (value instanceof BigDecimal) {
            BigDecimal decimal = (BigDecimal) value;
            write("decimal", quoted(decimal.unscaledValue().toString()) + "," + decimal.scale(), out);
        } else if (value instanceof java.util.Date) write("date", "" + ((java.util.Date) value).getTime(), out);
        else if (value instanceof List) {
            StringBuilder items = new StringBuilder();
            for (Object item : (List<?>) value) {
                if (items.length() > 0) items.append(',');
                writeValue(item, items);
            }
            write("array", "[" + items + "]", out);
        } else if (value instanceof Map) {
            StringBuilder items = new StringBuilder();
            for (Map.Entry<?, ?> each : ((Map<?, ?>) value).entrySet()) {
                items.append(items.length() > 0 ? ",[" : "[");
                writeValue(each.getKey(), items);
                items.append(',');
                writeValue(each.getValue(), items);
                items.append(']');
            }
            write("map", "[" + items + "]", out);
        } else if (value instanceof Struct) {
            StringBuilder items = new StringBuilder();
            for (Field field : ((Struct) value).schema().fields()) {
                if (items.length() > 0) items.append(',');
                writeValue(((Struct) value).getWithoutDefault(field.name()), items);
            }
            write("struct", "[" + items + "]", out);
        } else write(value.getClass().getName(), quoted(value.toString()), out);
    }

    private static void write(String tag, String content, StringBuilder out) {
        out.append("[\"").append(tag).append("\",").append(content).append(']');
    }

    private static byte[] hex(JsonNode node) {
        return node.isNull() ? null : HEX.parseHex(node.asText());
    }

    private static void writeHex(byte[] data, StringBuilder out) {
        out.append(data == null ? "null" : quoted(HEX.formatHex(data)));
    }

    private static String text(JsonNode node) {
        return node.isNull() ? null : node.asText();
    }

    /** Returns a JSON string in ASCII. Unpaired surrogates are escaped, so no character is lost. */
    private static String quoted(String text) {
        if (text == null) return "null";
        StringBuilder out = new StringBuilder("\"");
        for (char each : text.toCharArray()) {
            if (each >= ' ' && each <= '~' && each != '"' && each != '\\') out.append(each);
            else out.append(String.format("\\u%04x", (int) each));
        }
        return out.append('"').toString();
    }
}

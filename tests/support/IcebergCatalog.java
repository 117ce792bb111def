import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.SequenceWriter;
import jakarta.servlet.http.HttpServlet;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.iceberg.CatalogUtil;
import org.apache.iceberg.Table;
import org.apache.iceberg.catalog.Catalog;
import org.apache.iceberg.catalog.TableIdentifier;
import org.apache.iceberg.data.IcebergGenerics;
import org.apache.iceberg.data.Record;
import org.apache.iceberg.io.CloseableIterable;
import org.apache.iceberg.rest.RESTCatalogAdapter;
import org.apache.iceberg.rest.RESTCatalogServlet;
import org.apache.iceberg.types.Types;
import org.eclipse.jetty.server.Server;
import org.eclipse.jetty.servlet.ServletContextHandler;
import org.eclipse.jetty.servlet.ServletHolder;

/**
 * Iceberg's REST catalog for tests, with a JDBC catalog behind it. Its name is that of the sink's catalogs.
 * `GET /read?table=namespace.name` returns the rows of a table, which Iceberg's Java library reads.
 *
 * Arguments: the port, and the properties of the JDBC catalog as key=value.
 */
public final class IcebergCatalog {
  private IcebergCatalog() {}

  public static void main(String[] arguments) throws Exception {
    Map<String, String> properties = new HashMap<>(Map.of("type", "jdbc", "clients", "1", "jdbc.schema-version", "V1"));
    for (int i = 1; i < arguments.length; i++) {
      String[] property = arguments[i].split("=", 2);
      properties.put(property[0], property[1]);
    }
    Catalog catalog = CatalogUtil.buildIcebergCatalog("iceberg", properties, new Configuration());
    ServletContextHandler handler = new ServletContextHandler(ServletContextHandler.NO_SESSIONS);
    handler.addServlet(new ServletHolder(new RESTCatalogServlet(new RESTCatalogAdapter(catalog))), "/*");
    handler.addServlet(new ServletHolder(new Reader(catalog)), "/read");
    Server server = new Server(new InetSocketAddress("127.0.0.1", Integer.parseInt(arguments[0])));
    server.setHandler(handler);
    server.start();
    server.join();
  }

  private static final class Reader extends HttpServlet {
    private final transient Catalog catalog;
    private final ObjectMapper json = new ObjectMapper();

    Reader(Catalog catalog) {
      this.catalog = catalog;
    }

    @Override
    protected void doGet(HttpServletRequest request, HttpServletResponse response) throws IOException {
      Table table = catalog.loadTable(TableIdentifier.parse(request.getParameter("table")));
      response.setContentType("application/json");
      try (CloseableIterable<Record> records = IcebergGenerics.read(table).build();
          SequenceWriter rows = json.writer().writeValuesAsArray(response.getOutputStream())) {
        for (Record record : records) {
          rows.write(plain(record));
        }
      }
    }

    private static Object plain(Object value) {
      if (value instanceof Record record) {
        Map<String, Object> fields = new LinkedHashMap<>();
        for (Types.NestedField field : record.struct().fields()) {
          fields.put(field.name(), plain(record.getField(field.name())));
        }
        return fields;
      } else if (value instanceof List<?> list) {
        List<Object> elements = new ArrayList<>();
        list.forEach(element -> elements.add(plain(element)));
        return elements;
      } else if (value instanceof Map<?, ?> map) {
        Map<String, Object> entries = new LinkedHashMap<>();
        map.forEach((key, element) -> entries.put(String.valueOf(plain(key)), plain(element)));
        return entries;
      } else if (value instanceof ByteBuffer buffer) {
        byte[] bytes = new byte[buffer.remaining()];
        buffer.duplicate().get(bytes);
        return Base64.getEncoder().encodeToString(bytes);
      } else if (value instanceof Number || value instanceof Boolean || value == null) {
        return value instanceof java.math.BigDecimal ? value.toString() : value;
      }
      return value.toString();
    }
  }
}

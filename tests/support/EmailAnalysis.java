package headrace.tests;

import org.apache.lucene.analysis.TokenStream;
import org.apache.lucene.analysis.Tokenizer;
import org.apache.lucene.analysis.email.UAX29URLEmailTokenizer;
import org.elasticsearch.plugin.NamedComponent;
import org.elasticsearch.plugin.analysis.TokenFilterFactory;
import org.elasticsearch.plugin.analysis.TokenizerFactory;

/**
 * An analysis plug-in for Elasticsearch servers without the module analysis-common. Elasticsearch stores users and API
 * keys in the index .security. An analyzer of this index, for the email addresses of users, needs a tokenizer and two
 * token filters from analysis-common. The filters of this plug-in change nothing, because no test searches for users.
 */
public final class EmailAnalysis {
    @NamedComponent("uax_url_email")
    public static final class UrlEmailTokenizer implements TokenizerFactory {
        @Override
        public Tokenizer create() {
            return new UAX29URLEmailTokenizer();
        }
    }

    @NamedComponent("pattern_capture")
    public static final class PatternCaptureFilter implements TokenFilterFactory {
        @Override
        public TokenStream create(TokenStream tokens) {
            return tokens;
        }
    }

    @NamedComponent("unique")
    public static final class UniqueFilter implements TokenFilterFactory {
        @Override
        public TokenStream create(TokenStream tokens) {
            return tokens;
        }
    }

    private EmailAnalysis() {}
}
